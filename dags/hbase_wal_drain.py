from walferry.airflow.dags import hbase_wal_drain

hbase_wal_drain()
