from walferry.airflow.dags import hbase_migrate

hbase_migrate()
