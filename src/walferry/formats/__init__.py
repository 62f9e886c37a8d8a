"""Bytes of HBase to Arrow and back: WAL, KeyValue, tags, protobuf messages. Pure: no I/O, no clock, no cluster."""
