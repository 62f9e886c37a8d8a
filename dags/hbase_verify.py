from walferry.airflow.dags import hbase_verify

hbase_verify()
