"""Kafka: its settings, its topics, and messages in transactions.

Start with `sink`, which sends messages and positions in one transaction. `positions` reads them back, `topics` examines
and creates topics. `errors` tells what may pass by itself, and `refusals` what a person is to do.
"""
