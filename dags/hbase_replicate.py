from walferry.airflow.dags import hbase_replicate

hbase_replicate()
