"""What a busy loop and a sleeper feel of the CPU, and the clock ticks that the kernel lost."""
