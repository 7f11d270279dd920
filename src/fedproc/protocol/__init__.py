"""What crosses between server and client, and the round loop: it knows no network, lane, reader or wire."""
