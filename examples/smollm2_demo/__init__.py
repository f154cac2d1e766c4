"""The parts of the SmolLM2 demo; ``smollm2.py`` beside this folder runs it."""
