"""The operating system behind ports: disk, clocks, files, sockets, event loop and threads."""
