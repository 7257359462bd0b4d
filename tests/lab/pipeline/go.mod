module stallscope.lab/pipeline

go 1.25

require go.uber.org/automaxprocs v1.6.0
