module hooked

go 1.21

require stallscope v0.0.0

replace stallscope => ../../../hooks/go
