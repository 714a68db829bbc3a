"""Typed messages over ZeroMQ: codec with limits, keys, server, client, and the base of services."""
