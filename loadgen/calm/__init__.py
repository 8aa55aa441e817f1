"""What a gateway costs while it streams to many."""
