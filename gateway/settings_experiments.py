"""Settings of experiments between deployments; ``POST /admin/experiments`` takes the same."""

from __future__ import annotations

from pydantic import Field, field_validator, model_validator

from gateway.settings_base import Group, Name
from policies.experiment import MOST_STAGES, RAMP, Arm, Experiment, Guardrails, Kind, Sticky
from policies.experiment_metrics import METRICS


class ArmSettings(Group):
    """One side of an experiment."""

    name: Name = Field(description="Its name in reports.", examples=["vllm"])
    deployments: tuple[str, ...] = Field(
        min_length=1,
        description="Who serves it: ids of deployments, or what may stand after the `@` of a model's name.",
        examples=[["vllm"]],
    )


class GuardrailSettings(Group):
    """How much worse than the first an arm may certainly be before it is stopped."""

    errors: float = Field(default=0.05, ge=0, lt=1, description="More failed requests, as a share.", examples=[0.05])
    ttft: float = Field(default=1.5, ge=1, description="Longer TTFT, as a factor.", examples=[2])
    faults: float = Field(
        default=0.1, ge=0, lt=1, description="More answers of a wrong form, as a share.", examples=[0.2]
    )


class ExperimentSettings(Group):
    """Arms of one model that are compared on its requests. Only requests for the bare name take part."""

    name: Name = Field(description="Its name; the draw depends on it.", examples=["engines"])
    model: str = Field(min_length=1, description="The logical model.", examples=["SmolLM2-135M-Instruct"])
    arms: tuple[ArmSettings, ...] = Field(
        min_length=2,
        max_length=8,
        description="The first is what the others are compared with.",
        examples=[[{"name": "a", "deployments": ["llamacpp"]}, {"name": "b", "deployments": ["vllm"]}]],
    )
    shadow: bool = Field(
        default=False,
        description="Send copies to the second arm, whose answers nobody sees, instead of requests.",
        examples=[True],
    )
    ramp: tuple[float, ...] = Field(
        default=(0.5,),
        min_length=1,
        max_length=MOST_STAGES,
        description="Shares of the new arms, one after the other (`paceline experiment ramp`).",
        examples=[list(RAMP)],
    )
    advance_after: int | None = Field(
        default=None,
        ge=1,
        description="Requests of the new arms after which the next share is taken by itself. Left out: never.",
        examples=[200],
    )
    sticky: Sticky = Field(
        default=Sticky.REQUEST,
        description="What is kept to one arm: `request` (nothing), `key`, `user` (OpenAI's field) or `header`.",
        examples=["user"],
    )
    header: str = Field(default="", description="The header, for `sticky: header`.", examples=["x-session"])
    metric: str = Field(
        default="total", description=f"What the verdict is about: {', '.join(METRICS)}.", examples=["ttft"]
    )
    smallest: float = Field(default=0.1, gt=0, lt=1, description="Smallest difference that matters.", examples=[0.05])
    checked: float = Field(
        default=0.1, ge=0, le=1, description="Share of answers whose form is checked.", examples=[0.05]
    )
    guardrails: GuardrailSettings = Field(default=GuardrailSettings(), description="When an arm is stopped.")

    @field_validator("metric")
    @classmethod
    def _known(cls, metric: str) -> str:
        if metric not in METRICS:
            raise ValueError(f"{metric!r} is none of {', '.join(METRICS)}")
        return metric

    @field_validator("ramp")
    @classmethod
    def _rises(cls, ramp: tuple[float, ...]) -> tuple[float, ...]:
        if any(not 0.0 < share <= 1.0 for share in ramp) or list(ramp) != sorted(set(ramp)):
            raise ValueError("shares rise and are above 0 and at most 1, such as [0.05, 0.25, 0.5]")
        return ramp

    @model_validator(mode="after")
    def _consistent(self) -> ExperimentSettings:
        names = [arm.name for arm in self.arms]
        if len(set(names)) < len(names):
            raise ValueError("each arm needs its own name")
        if (self.sticky is Sticky.HEADER) != bool(self.header):
            raise ValueError("'header' belongs to 'sticky: header', and that needs it")
        if self.shadow and len(self.arms) != 2:
            raise ValueError("a shadow has two arms: the one that answers, and the one that gets copies")
        return self

    def experiment(self) -> Experiment:
        """Return what it describes."""
        return Experiment(
            name=self.name,
            model=self.model,
            arms=tuple(Arm(arm.name, arm.deployments) for arm in self.arms),
            kind=Kind.SHADOW if self.shadow else Kind.SPLIT,
            ramp=self.ramp,
            advance_after=self.advance_after,
            sticky=self.sticky,
            header=self.header.lower(),
            metric=self.metric,
            smallest=self.smallest,
            checked=self.checked,
            guardrails=Guardrails(**self.guardrails.model_dump()),
        )
