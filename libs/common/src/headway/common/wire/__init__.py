"""Typed messages over ZeroMQ: codec with limits, keys, server, client, and the frame of every service."""
