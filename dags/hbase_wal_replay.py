from walferry.airflow.dags import hbase_wal_replay

hbase_wal_replay()
