module stallscope

go 1.21
