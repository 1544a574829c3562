"""What ``restore`` returns: whether all was used, and what waits for objects to come."""

from __future__ import annotations

from replicax.checkpoint.errors import UnmatchedValuesError
from replicax.checkpoint.restoring import Restoration


class RestoreStatus:
    """The result of ``Checkpoint.restore`` and ``Checkpoint.read``.

    Values whose objects do not exist yet wait for them: a variable that is created
    later, in an object of the checkpoint, gets its value before its first use.

    Example:
        >>> import tempfile
        >>> import replicax as rx
        >>> from replicax.checkpoint.checkpoint import Checkpoint
        >>> path = Checkpoint(model={"w": rx.Variable(3.0)}, step=7).write(
        ...     f"{tempfile.mkdtemp()}/saved"
        ... )
        >>> model = {}
        >>> checkpoint = Checkpoint(model=model)
        >>> status = checkpoint.read(path)
        >>> model["w"] = rx.Variable(0.0)
        >>> model["w"].numpy()
        array(3., dtype=float32)
        >>> status.assert_consumed()
        Traceback (most recent call last):
            ...
        replicax.checkpoint.errors.UnmatchedValuesError: ... no object has taken: ['step']. ...
    """

    def __init__(self, restoration: Restoration | None) -> None:
        """The status of a restore; None if there was nothing to restore."""
        self._restoration = restoration

    def assert_existing_objects_matched(self) -> RestoreStatus:
        """Checks that every object there is now has got its value.

        Returns:
            This status, so that calls can be chained.

        Raises:
            UnmatchedValuesError: If the checkpoint has no value for one.
        """
        restoration = self._required()
        restoration.give_out()
        missing = restoration.look_for_unsaved()
        if missing:
            raise UnmatchedValuesError(
                f"the checkpoint {restoration.path} has nothing for the objects {missing}, which "
                "keep their values. Save them first, or leave them out of the Checkpoint."
            )
        return self

    def assert_consumed(self) -> RestoreStatus:
        """Checks that every saved value was given to an object, and every object got one.

        Returns:
            This status, so that calls can be chained.

        Raises:
            UnmatchedValuesError: If not.
        """
        restoration = self._required()
        self.assert_existing_objects_matched()
        if restoration.unused:
            raise UnmatchedValuesError(
                f"the checkpoint {restoration.path} has values that no object has taken: "
                f"{sorted(restoration.unused)}. Create their objects (call the model, take a "
                "step), add them to the Checkpoint, or do not assert that all is used."
            )
        return self

    def assert_nontrivial_match(self) -> RestoreStatus:
        """Checks that at least one saved value was given to an object.

        Returns:
            This status, so that calls can be chained.

        Raises:
            UnmatchedValuesError: If none was.
        """
        restoration = self._required()
        restoration.give_out()
        if restoration.num_given == 0:
            raise UnmatchedValuesError(
                f"no object has taken a value of the checkpoint {restoration.path}, which has "
                f"{sorted(restoration.unused)}. Give the Checkpoint the same names."
            )
        return self

    def expect_partial(self) -> RestoreStatus:
        """Says that some saved values will not be used, so that nothing warns of that.

        Values go on waiting for objects as long as the Checkpoint is there.

        Returns:
            This status, so that calls can be chained.
        """
        if self._restoration is not None:
            self._restoration.expect_partial()
        return self

    def _required(self) -> Restoration:
        if self._restoration is None:
            raise UnmatchedValuesError(
                "nothing was restored: the path was None, because there is no checkpoint yet. Ask "
                "only where there is one."
            )
        return self._restoration
