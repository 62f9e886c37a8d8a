from walferry.airflow.dags import hbase_receive

hbase_receive()
