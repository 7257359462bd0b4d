"""What is the same for every server that is asked by a connection of the agent's own: its round trip, its outages, where its address stands."""
