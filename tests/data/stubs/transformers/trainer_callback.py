"""The two methods of Hugging Face's CallbackHandler that stand around an update."""


class CallbackHandler:
    def on_step_begin(self, args, state, control):
        pass

    def on_step_end(self, args, state, control):
        pass
