"""Processes that tests play towards real ones, over real sockets: a driver, executors, joiners."""
