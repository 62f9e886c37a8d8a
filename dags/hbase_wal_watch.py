from walferry.airflow.dags import hbase_wal_watch

hbase_wal_watch()
