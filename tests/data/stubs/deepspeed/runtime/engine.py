"""DeepSpeedEngine.step: at an accumulation boundary it steps, or skips on overflow, and counts either way."""


class DeepSpeedEngine:
    def __init__(self, optimizer, accumulate, global_steps=0):
        self.optimizer = optimizer
        self.accumulate = accumulate
        self.global_steps = global_steps
        self.micro_steps = 0
        self.overflow = False

    def is_gradient_accumulation_boundary(self):
        return (self.micro_steps + 1) % self.accumulate == 0

    def step(self):
        if self.is_gradient_accumulation_boundary():
            if not self.overflow:
                self.optimizer.step()
            self.global_steps += 1
        self.micro_steps += 1
