from types import SimpleNamespace

PRE, POST = [], []


class Optimizer:
    def __init__(self, parameters):
        self.param_groups = []
        self.add_param_group({"params": list(parameters)})

    def add_param_group(self, group):
        self.param_groups.append(group)

    def zero_grad(self):
        pass

    def step(self):
        for hook in list(PRE):
            hook(self, (), {})
        for hook in list(POST):
            hook(self, (), {})


def register_optimizer_step_pre_hook(hook):
    PRE.append(hook)
    return SimpleNamespace(remove=lambda: PRE.remove(hook))


def register_optimizer_step_post_hook(hook):
    POST.append(hook)
    return SimpleNamespace(remove=lambda: POST.remove(hook))
