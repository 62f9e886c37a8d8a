"""Settings of servers that speak TLS, with certificates of one authority for `localhost`."""

from __future__ import annotations

from pathlib import Path

from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey
from cryptography.hazmat.primitives.serialization import BestAvailableEncryption, load_pem_private_key, pkcs12
from cryptography.x509 import load_pem_x509_certificate

from walferry.embedded.certificates import Authority

_PASSWORD = "of-the-stores"


def of_rpc(authority: Authority) -> dict[str, str]:
    """hbase-site.xml of an HBase 2.6 whose RPC is TLS only, and asks each client for a certificate, as it does by
    default."""
    both = authority.issue("hbase", host="localhost").both
    return {
        "hbase.server.netty.tls.enabled": "true",
        "hbase.server.netty.tls.supportplaintext": "false",
        "hbase.client.netty.tls.enabled": "true",
        "hbase.rpc.tls.keystore.location": str(both),
        "hbase.rpc.tls.keystore.type": "PEM",
        "hbase.rpc.tls.truststore.location": str(authority.bundle),
        "hbase.rpc.tls.truststore.type": "PEM",
    }


def of_hdfs(
    authority: Authority,
    conf: Path,
    host: str,
    *,
    address: str | None = None,
    policy: str = "HTTPS_ONLY",
    client_certificate: bool = False,
) -> dict[str, str]:
    """hdfs-site.xml of an HDFS whose WebHDFS is HTTPS, at `host` and at its `address`; the stores of its keys go into
    the folder `conf`. `policy` is dfs.http.policy."""
    both = authority.issue("hdfs", address, host=host)
    key = load_pem_private_key(both.key.read_bytes(), None)
    assert isinstance(key, EllipticCurvePrivateKey)
    own, ours = (load_pem_x509_certificate(path.read_bytes()) for path in (both.certificate, authority.bundle))
    protected = BestAvailableEncryption(_PASSWORD.encode())
    conf.mkdir(parents=True, exist_ok=True)
    stores = {
        "keystore": pkcs12.serialize_key_and_certificates(b"hdfs", key, own, [ours], protected),
        "truststore": pkcs12.serialize_java_truststore([pkcs12.PKCS12Certificate(ours, b"ours")], protected),
    }
    site: dict[str, str] = {}
    for name, content in stores.items():
        (conf / f"{name}.p12").write_bytes(content)
        site |= {f"{name}.location": str(conf / f"{name}.p12"), f"{name}.type": "pkcs12", f"{name}.password": _PASSWORD}
    site["keystore.keypassword"] = _PASSWORD
    for side in ("server", "client"):
        properties = "".join(
            f"<property><name>ssl.{side}.{name}</name><value>{value}</value></property>" for name, value in site.items()
        )
        (conf / f"ssl-{side}.xml").write_text(f"<configuration>{properties}</configuration>")
    return {
        "dfs.http.policy": policy,
        "dfs.client.https.need-auth": str(client_certificate).lower(),
    }
