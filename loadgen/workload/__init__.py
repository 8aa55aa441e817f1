"""What is asked of a server: arrivals, lengths, traces. Simulated and live runs share it."""
