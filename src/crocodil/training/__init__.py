"""Training: stages that define losses, a loop that takes steps, and runs that connect the stages."""
