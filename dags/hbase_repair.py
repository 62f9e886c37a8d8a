from walferry.airflow.dags import hbase_repair

hbase_repair()
