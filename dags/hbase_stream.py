from walferry.airflow.dags import hbase_stream

hbase_stream()
