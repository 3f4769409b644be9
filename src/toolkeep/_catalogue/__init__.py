"""What servers offer: immutable snapshots, names and search. Opens no connection, and importing it
loads neither the SDK nor the HTTP library."""
