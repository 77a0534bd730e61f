"""accelerate's wrapper: it steps only when gradients are synchronised, and may skip on overflow."""


class AcceleratedOptimizer:
    def __init__(self, optimizer, gradient_state):
        self.optimizer = optimizer
        self.gradient_state = gradient_state
        self.overflow = False

    def step(self):
        if self.gradient_state.sync_gradients and not self.overflow:
            self.optimizer.step()
