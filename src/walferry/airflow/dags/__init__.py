"""walferry's DAGs as functions. A file in the DAGs folder creates one:

from walferry.airflow.dags import hbase_migrate
hbase_migrate()
"""

from walferry.airflow.dags.drain import hbase_wal_drain
from walferry.airflow.dags.history import hbase_history
from walferry.airflow.dags.keep_log import hbase_keep_log
from walferry.airflow.dags.migrate import hbase_migrate
from walferry.airflow.dags.receive import hbase_receive
from walferry.airflow.dags.repair import hbase_repair
from walferry.airflow.dags.replay import hbase_wal_replay
from walferry.airflow.dags.replicate import hbase_replicate
from walferry.airflow.dags.stream import hbase_stream
from walferry.airflow.dags.verify import hbase_verify
from walferry.airflow.dags.watch import hbase_wal_watch

__all__ = [
    "hbase_history",
    "hbase_keep_log",
    "hbase_migrate",
    "hbase_receive",
    "hbase_repair",
    "hbase_replicate",
    "hbase_stream",
    "hbase_verify",
    "hbase_wal_drain",
    "hbase_wal_replay",
    "hbase_wal_watch",
]
