"""The Airflow provider: the connection types `hbase` and `kafka`, operators, sensors, DAGs, the board."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, distribution
from typing import Any

import walferry


def get_provider_info() -> dict[str, Any]:
    """The metadata that Airflow reads of a provider (entry point `apache_airflow_provider`)."""
    return {
        "package-name": "walferry",
        "name": "walferry",
        "description": walferry.__doc__,
        "versions": [walferry.__version__],
        "connection-types": [
            CONNECTION_TYPE,
            # A provider's own type of that name would clash with ours.
            *([] if _is_installed("apache-airflow-providers-apache-spark") else [SPARK_CONNECTION_TYPE]),
            *([] if _is_installed("apache-airflow-providers-apache-kafka") else [KAFKA_CONNECTION_TYPE]),
        ],
        "extra-links": [
            f"walferry.airflow.links.{name}" for name in ("BoardLink", "ReportLink", "DocsLink", "SparkLink")
        ],
    }


def _is_installed(name: str) -> bool:
    try:
        distribution(name)
    except PackageNotFoundError:
        return False
    return True


def _field(label: str, description: str) -> dict[str, Any]:
    return {"label": label, "description": description, "schema": {"type": ["string", "null"]}}


CONNECTION_TYPE: dict[str, Any] = {
    "connection-type": "hbase",
    "hook-name": "HBase",
    "hook-class-name": "walferry.airflow.hook.HBaseHook",
    "ui-field-behaviour": {
        "hidden-fields": ["schema", "login", "password"],
        "relabeling": {"host": "ZooKeeper quorum", "port": "ZooKeeper port"},
        "placeholders": {"host": "zk1.example,zk2.example", "port": "2181"},
    },
    "conn-fields": {
        "webhdfs": _field("WebHDFS", "The NameNode's, such as http://namenode.example:9870. Required."),
        "rootdir": _field("Root folder", "hbase.rootdir, such as hdfs://namenode.example:8020/hbase. Required."),
        "waldir": _field("WAL folder", "hbase.wal.dir, if it is set."),
        "wal_webhdfs": _field("WebHDFS of the WAL folder", "Its NameNode's, if it is on another HDFS."),
        "znode": _field("Parent znode", "zookeeper.znode.parent; default: /hbase."),
        "thrift": _field("Thrift server", "host:port. Optional; used only with apply: thrift."),
        "user": _field("User", "Where Kerberos is off: user for HBase and HDFS; default: the operating system's."),
        "principal": _field("Kerberos principal", "name@REALM. With a keytab or a ticket cache, for secured clusters."),
        "keytab": _field("Keytab", "Path of a keytab with the principal's key, never its content."),
        "ccache": _field("Ticket cache", "Instead of a keytab; default: KRB5CCNAME, or [kerberos] ccache."),
        "service": _field(
            "HBase's principal", "hbase/_HOST@REALM, as in hbase-site.xml; none: no login. Default: hbase."
        ),
        "qop": _field("Protection", "auth, auth-int or auth-conf; default: the least that a server asks for."),
        "zookeeper_service": _field("ZooKeeper's principal", "Its first part; none: no login. Default: zookeeper."),
        "tls_rpc": _field("TLS for RPC", "true: HBase's RPC uses TLS (2.6). WebHDFS does if its URL is https."),
        "tls_zookeeper": _field("TLS for ZooKeeper", "true: the quorum's ports are ZooKeeper's secure ones."),
        "tls_ca": _field("Trusted authorities", "Path of a PEM file; default: the machine's."),
        "tls_certificate": _field("Client certificate", "Path of a PEM file, for servers that want one."),
        "tls_key": _field("Key of the client certificate", "Path of a PEM file, never its content."),
        "realms": _field("Realms", 'JSON, {"end of host names": "REALM"}, where krb5.conf does not name them.'),
    },
}
"""The form of a connection of type `hbase`. Airflow 3.2 and newer read it instead of the hook's methods."""

SPARK_CONNECTION_TYPE: dict[str, Any] = {
    "connection-type": "spark",
    "hook-name": "Spark",
    "hook-class-name": "walferry.airflow.spark_submit.SparkHook",
    "ui-field-behaviour": {
        "hidden-fields": ["schema", "login", "password"],
        "relabeling": {"host": "Master"},
        "placeholders": {"host": "local[*], spark://master.example, yarn or k8s://https://api.example"},
    },
    "conn-fields": {
        "archives": _field("Packed environment", "Path or URL of what `python -m walferry.spark pack` wrote."),
        "ui": _field("Web page", "The master's, or that of YARN's resource manager, for the tasks' links."),
        "queue": _field("YARN queue", "Optional."),
        "namespace": _field("Kubernetes namespace", "Optional."),
    },
}
"""The form of a connection of type `spark`, used if Airflow's Spark provider is not installed."""

KAFKA_CONNECTION_TYPE: dict[str, Any] = {
    "connection-type": "kafka",
    "hook-name": "Kafka",
    "hook-class-name": "walferry.airflow.kafka.KafkaHook",
    "ui-field-behaviour": {
        "hidden-fields": ["schema"],
        "relabeling": {"host": "Brokers", "login": "SASL user", "password": "SASL password"},
        "placeholders": {
            "host": "kafka1.example,kafka2.example",
            "port": "9092",
            "extra": '{"security.protocol": "SASL_SSL", "sasl.mechanism": "SCRAM-SHA-512"}',
        },
    },
}
"""The form of a connection of type `kafka`, used if Airflow's Kafka provider is not installed."""
