"""The steps of a script that says them itself (precdiag.hook): the same recorder, told where it is."""

import os

import _precdiag_hook


class Manual:
    """One process's collection: enter() opens or resumes the step, leave() pauses it, step() ends it."""

    def __init__(self, folder, model):
        os.environ.setdefault("PRECDIAG_SESSION", folder)
        _precdiag_hook.install()
        self.recorder = _precdiag_hook.current().recorder
        self.recorder.raises = True
        self.session = self.recorder.session
        self.model = model
        self.index = 0
        self.entered = False

    def enter(self):
        """Record from here on."""
        if self.entered:
            self.recorder.resume()
        else:
            self.entered = True
            self.recorder.begin(self.index, self.model, None, (), {})

    def leave(self):
        """Record no more until enter() or step()."""
        self.recorder.pause(complete=False)

    def step(self):
        """End the step, recorded or not."""
        self.recorder.end(self.index)
        self.entered = False
        self.index += 1
