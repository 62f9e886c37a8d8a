"""A real Kafka broker on free ports of 127.0.0.1: one process that is its own controller (KRaft).

    with Broker.start(Path("somewhere")) as broker:
        producer = Producer({"bootstrap.servers": broker.address})

Topics are made by the clients: the broker makes none by itself.
"""

from __future__ import annotations

import base64
import subprocess
import time
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from walferry.embedded import jars, processes
from walferry.embedded.certificates import Authority
from walferry.embedded.cluster import HOST, LOG4J, more_jvm_flags
from walferry.embedded.processes import ServerProcess, Servers
from walferry.errors import WalferryError

BOOT_DEADLINE_S = 120.0
RUN_DEADLINE_S = 60.0
CONSOLE_CONSUMER = "org.apache.kafka.tools.consumer.ConsoleConsumer"
STORAGE_TOOL = "kafka.tools.StorageTool"
_PROPERTIES: Mapping[str, object] = {
    "process.roles": "broker,controller",
    "node.id": 1,
    "controller.listener.names": "CONTROLLER",
    "offsets.topic.replication.factor": 1,
    "offsets.topic.num.partitions": 1,
    "transaction.state.log.replication.factor": 1,
    "transaction.state.log.min.isr": 1,
    "transaction.state.log.num.partitions": 3,
    "group.initial.rebalance.delay.ms": 0,
    # ms until a broker counts as gone: only then is one that was killed let in again. It reports more often than that.
    "broker.session.timeout.ms": 3000,
    "broker.heartbeat.interval.ms": 500,
    "auto.create.topics.enable": "false",
}
SCRAM = "SCRAM-SHA-512"
_PROTOCOLS = {"SASL_PLAINTEXT": "SASL_PLAINTEXT", "SASL_SSL": "SASL_SSL", "SSL": "SSL", "MUTUAL": "SSL"}
"""the protocol of each secured listener"""


@dataclass(frozen=True)
class Security:
    """Listeners beside the plain one: SASL_PLAINTEXT, SASL_SSL, SSL, and MUTUAL, which is SSL with the client's
    certificate. Clients that need no login, as those of the plain one, are ANONYMOUS; those of MUTUAL are `CN=name`.

    `authority` gives the broker its certificate, and those of clients are to be its own, too. `users`: passwords by
    name, letters and digits, for the mechanisms PLAIN and SCRAM-SHA-512. `authorizes`: only what ACLs grant is allowed;
    ANONYMOUS may do everything.
    """

    authority: Authority
    users: Mapping[str, str]
    authorizes: bool = False
    ports: Mapping[str, int] = field(
        default_factory=lambda: dict(zip(_PROTOCOLS, processes.free_ports(4), strict=True))
    )

    def properties(self) -> dict[str, object]:
        """The broker's settings but for the listeners' addresses; its certificate is made."""
        known = " ".join(f'user_{name}="{password}"' for name, password in self.users.items())
        modules = {
            "plain": f"org.apache.kafka.common.security.plain.PlainLoginModule required {known};",
            SCRAM.lower(): "org.apache.kafka.common.security.scram.ScramLoginModule required;",
        }
        return {
            "listener.security.protocol.map": ",".join(
                f"{listener}:{protocol}"
                for listener, protocol in ({"CONTROLLER": "PLAINTEXT", "PLAINTEXT": "PLAINTEXT"} | _PROTOCOLS).items()
            ),
            "sasl.enabled.mechanisms": f"PLAIN,{SCRAM}",
            **{
                f"listener.name.{listener}.{mechanism}.sasl.jaas.config": module
                for listener in ("sasl_plaintext", "sasl_ssl")
                for mechanism, module in modules.items()
            },
            **{f"ssl.{store}store.type": "PEM" for store in ("key", "trust")},
            "ssl.keystore.location": self.authority.issue("broker", HOST).both,
            "ssl.truststore.location": self.authority.bundle,
            "listener.name.mutual.ssl.client.auth": "required",
            **(_AUTHORIZER if self.authorizes else {}),
        }

    def scram(self) -> list[str]:
        """The arguments of Kafka's storage tool that make the users known for SCRAM."""
        return [f"--add-scram={SCRAM}=[name={name},password={password}]" for name, password in self.users.items()]


_AUTHORIZER = {
    "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
    "super.users": "User:ANONYMOUS",
}


@dataclass
class Broker(Servers):
    """One broker in `directory`: its configuration, data and log. A broker booted in a directory with data uses it."""

    directory: Path
    port: int
    controller_port: int
    security: Security | None = None
    server: ServerProcess | None = None

    @classmethod
    def start(cls, directory: Path, security: Security | None = None) -> Broker:
        """Boot a broker on free ports and return when it serves. Raises WalferryError if that fails."""
        port, controller_port = processes.free_ports(2)
        broker = cls(directory.absolute(), port, controller_port, security)
        broker.boot()
        return broker

    @property
    def address(self) -> str:
        """The "host:port" for clients."""
        return f"{HOST}:{self.port}"

    def secured(self, listener: str) -> str:
        """The "host:port" of a listener of its security."""
        assert self.security is not None, "the broker was booted without"
        return f"{HOST}:{self.security.ports[listener]}"

    def boot(self) -> None:
        """Start the process and return when it serves. Raises WalferryError with its last log lines if that fails."""
        self._write_configuration()
        if not (self._data / "meta.properties").exists():
            cluster_id = base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")
            users = [] if self.security is None else self.security.scram()
            self.run(STORAGE_TOOL, ["format", f"--cluster-id={cluster_id}", f"--config={self._properties}", *users])
        log = self.directory / "logs" / "kafka.log"
        command = self._command("kafka.Kafka", [str(self._properties)])
        self.server = processes.start("kafka", command, log, folder=self.directory)
        try:
            self.server.await_line("Kafka Server started", time.monotonic() + BOOT_DEADLINE_S)
        except BaseException:
            self.stop()
            raise

    def kill(self) -> None:
        """kill -9: the broker dies at once, as in a crash; `boot` starts it again with what it had written."""
        if self.server is not None:
            processes.kill(self.server)
            self.server = None

    def stop(self) -> None:
        """End the process; its data stays. A second call does nothing."""
        if self.server is not None:
            processes.stop([self.server])
            self.server = None

    def consume(self, topic: str, count: int, *, timeout_s: float = 60) -> list[str]:
        """The first `count` committed messages of a topic, as Kafka's own console consumer prints them.

        One line each: "Partition:0", headers ("name:value,…" or "NO_HEADERS"), key and value ("null" if there is none),
        with tabs between them; partitions in any order. Fewer lines if `timeout_s` passes without another message.
        """
        arguments = [
            *(f"--bootstrap-server={self.address}", f"--topic={topic}", f"--max-messages={count}"),
            *("--from-beginning", "--isolation-level=read_committed", f"--timeout-ms={round(timeout_s * 1000)}"),
            *(f"--property=print.{what}=true" for what in ("partition", "headers", "key", "value")),
        ]
        printed = self.run(CONSOLE_CONSUMER, arguments, timeout_s=timeout_s + RUN_DEADLINE_S)
        return printed.split("\n")[:-1]  # not splitlines, which also cuts at separators inside values

    def run(
        self, main: str, arguments: Sequence[str], *, given: str | None = None, timeout_s: float = RUN_DEADLINE_S
    ) -> str:
        """Run the Java class `main` of Kafka's own programs, with `given` as its stdin, and return its stdout.

        Raises WalferryError, with the end of its output if it fails, and if it has not ended after `timeout_s`.
        """
        command = self._command(main, arguments)
        try:
            answer = subprocess.run(
                command, capture_output=True, encoding="utf-8", errors="replace", input=given, timeout=timeout_s,
                check=False,
            )  # fmt: skip
        except subprocess.TimeoutExpired as error:
            raise WalferryError(f"{main} {' '.join(arguments)} has not ended after {timeout_s:g} s") from error
        if answer.returncode != 0:
            tail = "\n".join((answer.stdout + answer.stderr).splitlines()[-15:])
            raise WalferryError(f"{main} {' '.join(arguments)} failed with {answer.returncode}:\n{tail}")
        return answer.stdout

    @property
    def _conf(self) -> Path:
        return self.directory / "conf"

    @property
    def _data(self) -> Path:
        return self.directory / "data"

    @property
    def _properties(self) -> Path:
        return self._conf / "server.properties"

    def _command(self, main: str, arguments: Sequence[str]) -> list[str]:
        # Native libraries of the compressions are unpacked in the temporary folder.
        flags = ["-XX:-UsePerfData", "-Djava.net.preferIPv4Stack=true", *more_jvm_flags(), "-Xmx256m"]
        temporary = f"-Djava.io.tmpdir={self.directory / 'tmp'}"
        return [jars.java(), *flags, temporary, "-cp", f"{self._conf}:{jars.kafka_classpath()}", main, *arguments]

    def _write_configuration(self) -> None:
        for folder in (self._conf, self.directory / "tmp"):
            folder.mkdir(parents=True, exist_ok=True)
        ports = {"PLAINTEXT": self.port} | ({} if self.security is None else dict(self.security.ports))
        listeners = ",".join(f"{listener}://{HOST}:{port}" for listener, port in ports.items())
        properties = {
            **_PROPERTIES,
            "listeners": f"{listeners},CONTROLLER://{HOST}:{self.controller_port}",
            "advertised.listeners": listeners,
            "controller.quorum.voters": f"1@{HOST}:{self.controller_port}",
            "log.dirs": self._data,
            **({} if self.security is None else self.security.properties()),
        }
        self._properties.write_text("".join(f"{name}={value}\n" for name, value in properties.items()))
        (self._conf / "log4j.properties").write_text(LOG4J)
