"""Lists the jars of the embedded servers, and fetches them into the cache folder.

Each list is complete: no jar's own dependencies are resolved, so Maven and Ivy fetch exactly the same set.
`python -m walferry.embedded jars` fetches the newest version's jars, with `--kafka` also those of a Kafka broker; later
calls only check the folders. Another version of HBase is fetched at its first boot.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from functools import cache
from importlib.util import find_spec
from pathlib import Path

from walferry.errors import UsageError, WalferryError
from walferry.settings import Places

NEWEST = "2.6.3"
COORDINATES = (
    # HMaster, HRegionServer, ZooKeeper, MiniDFSClusterManager, WALPrettyPrinter and all their dependencies, in one jar.
    "org.apache.hbase:hbase-shaded-testing-util:2.6.3-hadoop3",
    "org.apache.hbase:hbase-thrift:2.6.1",
    "org.apache.thrift:libthrift:0.14.1",
    # MiniDFSClusterManager does not start without JUnit and Mockito on its class path.
    "junit:junit:4.13.2",
    "org.hamcrest:hamcrest-core:1.3",
    "org.mockito:mockito-core:2.28.2",
    "net.bytebuddy:byte-buddy:1.9.10",
    "net.bytebuddy:byte-buddy-agent:1.9.10",
    "org.objenesis:objenesis:2.6",
    # Not in the shaded jar: logging, Thrift's option parser, annotations, tracing.
    "org.slf4j:slf4j-api:1.7.33",
    "org.slf4j:slf4j-reload4j:1.7.36",
    "ch.qos.reload4j:reload4j:1.2.22",
    "commons-logging:commons-logging:1.2",
    "commons-cli:commons-cli:1.5.0",
    "org.apache.commons:commons-lang3:3.9",
    "org.javassist:javassist:3.30.2-GA",
    "org.apache.yetus:audience-annotations:0.13.0",
    "com.github.stephenc.findbugs:findbugs-annotations:1.3.9-1",
    "jakarta.annotation:jakarta.annotation-api:1.3.5",
    "jakarta.validation:jakarta.validation-api:2.0.2",
    "org.glassfish.hk2.external:jakarta.inject:2.6.1",
    "javax.annotation:javax.annotation-api:1.2",
    "javax.ws.rs:jsr311-api:1.1.1",  # WebHDFS answers 500 without it
    "io.opentelemetry:opentelemetry-api:1.49.0",
    "io.opentelemetry:opentelemetry-context:1.49.0",
    "io.opentelemetry.semconv:opentelemetry-semconv:1.29.0-alpha",
)
"""HBase NEWEST; also the HDFS and Thrift servers for clusters of every version"""
_LOGGING = (
    "org.slf4j:slf4j-api:1.7.33",
    "ch.qos.reload4j:reload4j:1.2.22",
    "commons-logging:commons-logging:1.2",
    "com.github.stephenc.findbugs:findbugs-annotations:1.3.9-1",
)
_TRACING = (
    "io.opentelemetry:opentelemetry-api:1.15.0",
    "io.opentelemetry:opentelemetry-context:1.15.0",
    "io.opentelemetry:opentelemetry-semconv:1.15.0-alpha",
)
_RELOAD4J = "org.slf4j:slf4j-reload4j:1.7.36"
_LOG4J = "org.slf4j:slf4j-log4j12:1.7.25"  # 2.2's code names its classes
# Also one jar: HMaster, HRegionServer, ZooKeeper, WALPrettyPrinter, and a Hadoop client of its own.
VERSIONS = {
    "1.7.2": (
        "org.apache.hbase:hbase-shaded-testing-util:1.7.2",
        "org.apache.htrace:htrace-core:3.1.0-incubating",
        "org.apache.htrace:htrace-core4:4.0.1-incubating",
        _RELOAD4J,
        *_LOGGING,
    ),
    "2.2.3": (
        "org.apache.hbase:hbase-shaded-testing-util:2.2.3",
        "org.apache.htrace:htrace-core4:4.2.0-incubating",
        "org.apache.yetus:audience-annotations:0.5.0",
        "javax.annotation:javax.annotation-api:1.2",
        _LOG4J,
        *_LOGGING,
    ),
    "2.5.7": (
        "org.apache.hbase:hbase-shaded-testing-util:2.5.7-hadoop3",
        "org.apache.htrace:htrace-core4:4.1.0-incubating",
        "org.apache.yetus:audience-annotations:0.13.0",
        "jakarta.annotation:jakarta.annotation-api:1.3.5",
        "jakarta.validation:jakarta.validation-api:2.0.2",
        "org.glassfish.hk2.external:jakarta.inject:2.6.1",
        "org.javassist:javassist:3.29.2-GA",
        *_TRACING,
        _RELOAD4J,
        *_LOGGING,
    ),
    NEWEST: COORDINATES,
}
"""the versions of HBase that can be booted, with the jars of each"""
MAPREDUCE = (
    "org.apache.hbase:hbase-mapreduce:2.6.1-hadoop3",
    # Classes that it needs under their own names; NEWEST's jar has them under other names.
    "org.apache.zookeeper:zookeeper:3.8.4",
    "io.dropwizard.metrics:metrics-core:3.2.6",
    "com.google.protobuf:protobuf-java:2.5.0",
    "io.opentelemetry:opentelemetry-semconv:1.15.0-alpha",
)
"""in addition to NEWEST's jars, for HBase's MapReduce jobs (WALPlayer, HashTable, …), which run in their own process"""
KAFKA = (
    "ch.qos.reload4j:reload4j:1.2.22",
    "com.fasterxml.jackson.core:jackson-annotations:2.16.2",
    "com.fasterxml.jackson.core:jackson-core:2.16.2",
    "com.fasterxml.jackson.core:jackson-databind:2.16.2",
    "com.fasterxml.jackson.dataformat:jackson-dataformat-csv:2.16.2",
    "com.fasterxml.jackson.datatype:jackson-datatype-jdk8:2.16.2",
    "com.fasterxml.jackson.module:jackson-module-scala_2.13:2.16.2",
    "com.github.ben-manes.caffeine:caffeine:2.9.3",
    "com.github.luben:zstd-jni:1.5.6-4",
    "com.google.errorprone:error_prone_annotations:2.10.0",
    "com.thoughtworks.paranamer:paranamer:2.8",
    "com.typesafe.scala-logging:scala-logging_2.13:3.9.5",
    "com.yammer.metrics:metrics-core:2.2.0",
    "commons-beanutils:commons-beanutils:1.9.4",
    "commons-cli:commons-cli:1.4",
    "commons-collections:commons-collections:3.2.2",
    "commons-digester:commons-digester:2.1",
    "commons-io:commons-io:2.14.0",
    "commons-logging:commons-logging:1.2",
    "commons-validator:commons-validator:1.7",
    "io.dropwizard.metrics:metrics-core:4.1.12.1",
    "io.netty:netty-buffer:4.1.105.Final",
    "io.netty:netty-codec:4.1.105.Final",
    "io.netty:netty-common:4.1.105.Final",
    "io.netty:netty-handler:4.1.105.Final",
    "io.netty:netty-resolver:4.1.105.Final",
    "io.netty:netty-transport-classes-epoll:4.1.105.Final",
    "io.netty:netty-transport-native-epoll:4.1.105.Final",
    "io.netty:netty-transport-native-unix-common:4.1.105.Final",
    "io.netty:netty-transport:4.1.105.Final",
    "net.sf.jopt-simple:jopt-simple:5.0.4",
    "net.sourceforge.argparse4j:argparse4j:0.7.0",
    "org.apache.kafka:kafka-clients:3.9.1",
    "org.apache.kafka:kafka-group-coordinator-api:3.9.1",
    "org.apache.kafka:kafka-group-coordinator:3.9.1",
    "org.apache.kafka:kafka-metadata:3.9.1",
    "org.apache.kafka:kafka-raft:3.9.1",
    "org.apache.kafka:kafka-server-common:3.9.1",
    "org.apache.kafka:kafka-server:3.9.1",
    "org.apache.kafka:kafka-storage-api:3.9.1",
    "org.apache.kafka:kafka-storage:3.9.1",
    "org.apache.kafka:kafka-tools-api:3.9.1",
    "org.apache.kafka:kafka-tools:3.9.1",
    "org.apache.kafka:kafka-transaction-coordinator:3.9.1",
    "org.apache.kafka:kafka_2.13:3.9.1",
    "org.apache.yetus:audience-annotations:0.12.0",
    "org.apache.zookeeper:zookeeper-jute:3.8.4",
    "org.apache.zookeeper:zookeeper:3.8.4",
    "org.bitbucket.b_c:jose4j:0.9.4",
    "org.lz4:lz4-java:1.8.0",
    "org.pcollections:pcollections:4.0.1",
    "org.scala-lang.modules:scala-collection-compat_2.13:2.10.0",
    "org.scala-lang.modules:scala-java8-compat_2.13:1.0.2",
    "org.scala-lang:scala-library:2.13.15",
    "org.scala-lang:scala-reflect:2.13.15",
    "org.slf4j:slf4j-api:1.7.36",
    "org.slf4j:slf4j-reload4j:1.7.36",
    "org.xerial.snappy:snappy-java:1.1.10.5",
)
"""a broker of Kafka 3.9 and Kafka's own programs: kafka_2.13 and kafka-tools with what they require, less Connect"""
HTTPFS = (
    "ch.qos.reload4j:reload4j:1.2.22",
    "com.fasterxml.jackson.core:jackson-annotations:2.12.7",
    "com.fasterxml.jackson.core:jackson-core:2.12.7",
    "com.fasterxml.jackson.core:jackson-databind:2.12.7.1",
    "com.fasterxml.woodstox:woodstox-core:5.4.0",
    "com.github.pjfanning:jersey-json:1.22.0",
    "com.googlecode.json-simple:json-simple:1.1.1",
    "com.sun.jersey:jersey-core:1.19.4",
    "com.sun.jersey:jersey-server:1.19.4",
    "com.sun.jersey:jersey-servlet:1.19.4",
    "com.sun.xml.bind:jaxb-impl:2.2.3-1",
    "commons-codec:commons-codec:1.15",
    "commons-collections:commons-collections:3.2.2",
    "commons-logging:commons-logging:1.2",
    "javax.activation:activation:1.1",
    "javax.servlet:javax.servlet-api:3.1.0",
    "javax.ws.rs:jsr311-api:1.1.1",
    "javax.xml.bind:jaxb-api:2.2.2",
    "org.apache.commons:commons-configuration2:2.10.1",
    "org.apache.commons:commons-lang3:3.12.0",
    "org.apache.commons:commons-text:1.10.0",
    "org.apache.curator:curator-client:5.2.0",
    "org.apache.hadoop.thirdparty:hadoop-shaded-guava:1.3.0",
    "org.apache.hadoop.thirdparty:hadoop-shaded-protobuf_3_25:1.3.0",
    "org.apache.hadoop:hadoop-annotations:3.4.1",
    "org.apache.hadoop:hadoop-auth:3.4.1",
    "org.apache.hadoop:hadoop-common:3.4.1",
    "org.apache.hadoop:hadoop-hdfs-client:3.4.1",
    "org.apache.hadoop:hadoop-hdfs-httpfs:3.4.1",
    "org.apache.hadoop:hadoop-hdfs:3.4.1",
    "org.apache.httpcomponents:httpclient:4.5.13",
    "org.apache.httpcomponents:httpcore:4.4.13",
    "org.apache.zookeeper:zookeeper:3.8.4",
    "org.codehaus.jettison:jettison:1.5.4",
    "org.codehaus.woodstox:stax2-api:4.2.1",
    "org.eclipse.jetty:jetty-http:9.4.53.v20231009",
    "org.eclipse.jetty:jetty-io:9.4.53.v20231009",
    "org.eclipse.jetty:jetty-security:9.4.53.v20231009",
    "org.eclipse.jetty:jetty-server:9.4.53.v20231009",
    "org.eclipse.jetty:jetty-servlet:9.4.53.v20231009",
    "org.eclipse.jetty:jetty-util:9.4.53.v20231009",
    "org.eclipse.jetty:jetty-webapp:9.4.53.v20231009",
    "org.eclipse.jetty:jetty-xml:9.4.53.v20231009",
    "org.slf4j:slf4j-api:1.7.36",
    "org.slf4j:slf4j-reload4j:1.7.36",
)
"""HttpFS of Hadoop 3.4, with what it loads to serve a file: NEWEST's jar has these classes under other names"""
OLDEST_JAVA = 17


def cache_folder() -> Path:
    """`$WALFERRY_CACHE`, or `~/.cache/walferry`: downloads that all checkouts share."""
    return Places.read().cache.expanduser()


@cache
def java() -> str:
    """Path of the `java` to run (JAVA_HOME first, then PATH). Raises WalferryError if there is none or if it is too
    old."""
    home = os.environ.get("JAVA_HOME")
    found = shutil.which("java", path=f"{home}/bin" if home else None)
    if found is None:
        raise WalferryError(f"no java found in {home or 'PATH'}: install JDK {OLDEST_JAVA} or newer")
    answer = subprocess.run([found, "-version"], capture_output=True, text=True, check=False)
    version = re.search(r'version "(\d+)', answer.stderr)
    if version is None or int(version[1]) < OLDEST_JAVA:
        seen = (answer.stderr.splitlines() or ["no version"])[0]
        raise WalferryError(f"{found} is too old ({seen}): install JDK {OLDEST_JAVA} or newer")
    return found


def coordinates(version: str) -> tuple[str, ...]:
    """The jars of a version of HBase. Raises UsageError for a version that is not in VERSIONS."""
    if version not in VERSIONS:
        raise UsageError(f"HBase {version} cannot be booted here; choose one of {', '.join(VERSIONS)}", version=version)
    return VERSIONS[version]


def classpath(version: str = NEWEST) -> str:
    """Class path of a version's jars; fetches them unless the cache has them. Raises WalferryError if that fails."""
    return _classpath(fetch(version))


def mapreduce_classpath() -> str:
    """Class path of NEWEST's MapReduce jobs; fetched like `classpath`."""
    return f"{classpath()}{os.pathsep}{_classpath(_fetch(MAPREDUCE))}"


def kafka_classpath() -> str:
    """Class path of a Kafka broker and Kafka's own programs; fetched like `classpath`."""
    return _classpath(fetch_kafka())


def httpfs_classpath() -> str:
    """Class path of HttpFS; fetched like `classpath`."""
    return _classpath(_fetch(HTTPFS))


def fetch(version: str = NEWEST) -> Path:
    """Fetch a version's jars unless the cache has them; return their folder."""
    return _fetch(coordinates(version))


def fetch_kafka() -> Path:
    """Fetch the jars of a Kafka broker unless the cache has them; return their folder."""
    return _fetch(KAFKA)


def _classpath(folder: Path) -> str:
    return os.pathsep.join(str(jar) for jar in sorted(folder.glob("*.jar")))


def _fetch(wanted: Sequence[str]) -> Path:
    """Fetch jars unless the cache has them; return their folder.

    A rename makes the complete folder appear, so a broken download leaves nothing behind, and two checkouts may fetch
    at the same time.
    """
    digest = hashlib.sha256("\n".join(wanted).encode()).hexdigest()[:12]
    folder = cache_folder() / f"jars-{digest}"
    if folder.is_dir():
        return folder
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder.parent, prefix="fetching-") as scratch:
        fetched = Path(scratch) / "jars"
        fetched.mkdir()
        command = (_by_maven if shutil.which("mvn") else _by_ivy)(Path(scratch), wanted)
        answer = subprocess.run(command, capture_output=True, text=True, check=False, cwd=scratch)
        names = {jar.name for jar in fetched.glob("*.jar")}
        missing = [coordinate for coordinate in wanted if _jar_name(coordinate) not in names]
        if answer.returncode != 0 or missing:
            output = "\n".join((answer.stdout + answer.stderr).splitlines()[-15:])
            raise WalferryError(
                f"`{command[0]}` could not fetch {', '.join(missing) or 'the jars'}; its output:\n{output}"
            )
        try:
            fetched.rename(folder)
        except OSError:
            if not folder.is_dir():  # if it exists, another process was faster, with the same jars
                raise
    return folder


def _jar_name(coordinate: str) -> str:
    _, artifact, version = coordinate.split(":")
    return f"{artifact}-{version}.jar"


def _by_maven(scratch: Path, wanted: Sequence[str]) -> list[str]:
    exclude_all = "<exclusions><exclusion><groupId>*</groupId><artifactId>*</artifactId></exclusion></exclusions>"
    dependencies = "".join(
        f"<dependency><groupId>{group}</groupId><artifactId>{artifact}</artifactId>"
        f"<version>{version}</version>{exclude_all}</dependency>\n"
        for group, artifact, version in (coordinate.split(":") for coordinate in wanted)
    )
    (scratch / "pom.xml").write_text(
        '<project xmlns="http://maven.apache.org/POM/4.0.0"><modelVersion>4.0.0</modelVersion>\n'
        "<groupId>walferry</groupId><artifactId>embedded</artifactId><version>1</version>"
        f"<packaging>pom</packaging>\n<dependencies>\n{dependencies}</dependencies></project>\n"
    )
    return ["mvn", "-B", "-q", "dependency:copy-dependencies", f"-DoutputDirectory={scratch / 'jars'}"]


def _by_ivy(scratch: Path, wanted: Sequence[str]) -> list[str]:
    """Fetch with PySpark's Ivy, which needs no Maven but takes longer: it fetches one jar after the other."""
    spec = find_spec("pyspark")
    if spec is None or spec.origin is None:
        raise WalferryError("neither `mvn` nor PySpark's Ivy was found to fetch jars: install Maven or pyspark")
    ivy = next((Path(spec.origin).parent / "jars").glob("ivy-*.jar"))
    dependencies = "".join(
        f'<dependency org="{group}" name="{artifact}" rev="{version}" transitive="false" conf="default->master"/>\n'
        for group, artifact, version in (coordinate.split(":") for coordinate in wanted)
    )
    (scratch / "ivy.xml").write_text(
        '<ivy-module version="2.0"><info organisation="walferry" module="embedded"/>\n'
        f"<dependencies>\n{dependencies}</dependencies></ivy-module>\n"
    )
    retrieve = f"{scratch / 'jars'}/[artifact]-[revision].[ext]"
    cached = str(cache_folder() / "ivy")
    return [java(), "-jar", str(ivy), "-ivy", "ivy.xml", "-cache", cached, "-retrieve", retrieve]
