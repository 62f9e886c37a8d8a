from walferry.airflow.dags import hbase_keep_log

hbase_keep_log()
