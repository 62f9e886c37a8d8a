from walferry.airflow.dags import hbase_history

hbase_history()
