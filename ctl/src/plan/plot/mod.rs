//! `pfoctl plan plot`: a frontier or a step as a picture, SVG or PNG.
//!
//! What is in a picture is described in `frontier_picture` and `timeline_picture`, in strokes that
//! suit either format; how strokes become a file, in `picture` and `lettering`.

mod chart;
mod colours;
mod course_picture;
mod frontier_picture;
mod lettering;
mod picture;
mod points;
mod timeline_picture;

use std::path::Path;

use clap::{Args, ValueEnum};
use pfo_planner::{Deadline, Due, Frontier, Plan, Profile, Timeline, WrittenDeadline, replay};

use crate::error::Error;
use crate::failure::Failure;
use crate::output::Output;
use crate::planning::file;
use crate::planning::replayed::ReplayArguments;
use crate::progress::Progress;
pub(crate) use course_picture::Course;
use course_picture::CoursePicture;
use frontier_picture::FrontierPicture;
use pfo_experiment::Cost;
use picture::{Form, Picture, Size};
use points::{Origin, Points};
use timeline_picture::{Colouring, TimelinePicture};

/// Draw a frontier, or the step of a plan, as SVG or PNG
#[derive(Args)]
pub(crate) struct Plot {
    /// A frontier, or a plan (of any format that `plan evaluate` reads) with --profile
    #[arg(value_name = "FRONTIER|PLAN")]
    input: String,

    /// What to draw [default: the frontier of a frontier, the timeline of a plan]
    #[arg(long, value_enum)]
    kind: Option<Kind>,

    /// The profile over which a plan is replayed; a frontier has its own
    #[arg(long, value_name = "PROFILE.csv")]
    profile: Option<String>,

    #[command(flatten)]
    replayed: ReplayArguments,

    /// Draw these points over a frontier: another frontier, such as one that `plan import` replayed,
    /// or CSV with columns time (s) and energy (J), which the picture labels as measured if `plan sweep`
    /// wrote them, and else as claimed; may be given several times
    #[arg(long, value_name = "FRONTIER|POINTS.csv")]
    over: Vec<String>,

    /// Which plan of a frontier to mark or to draw: its deadline, as `plan export` takes it [default:
    /// min-energy]
    #[arg(long, value_name = "D")]
    deadline: Option<WrittenDeadline>,

    /// What the colours of a timeline show [default: power]
    #[arg(long, value_enum)]
    colour: Option<Colouring>,

    /// Size in pixels [default: large enough to be legible]
    #[arg(long, value_name = "WIDTHxHEIGHT")]
    size: Option<Size>,

    /// The file to write; its name ends in .svg or .png
    #[arg(short, long, value_name = "OUT.svg|OUT.png")]
    output: String,
}

/// The kinds of pictures.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Kind {
    /// Iteration time against energy
    Frontier,
    /// Stages as rows, instructions along time
    Timeline,
}

/// A frontier as the text of an SVG, with the plan in force marked, whose step takes that long, or
/// else the one of least energy, and with named sets of what was measured, in seconds and joules.
pub(crate) fn frontier_svg(
    frontier: &Frontier,
    in_force_s: Option<f64>,
    measured: Vec<(&str, Vec<(f64, f64)>)>,
) -> Result<String, Failure> {
    let fastest_s = frontier.seconds(Deadline::Fastest);
    // Whole microseconds are enough for a label.
    let rounded = |time_s: f64| Deadline::Seconds((time_s * 1e6).ceil() / 1e6);
    let in_force = in_force_s.filter(|time_s| *time_s >= fastest_s).map(rounded);
    let called = if in_force.is_some() { "the job's plan, predicted" } else { "least energy" };
    let deadline = in_force.unwrap_or(Deadline::MinEnergy);
    let chosen = frontier.plan_for(Due::Waiting(frontier.seconds(deadline)))?;
    let profile = frontier.pipeline().profile();
    let all_max = Cost::at_highest_clocks(profile, &chosen, frontier.p2p_power())?;
    let over = measured.into_iter().filter(|(_, points)| !points.is_empty());
    let of = |(name, points): (&str, _)| Points {
        name: name.to_owned(),
        origin: Origin::Measured,
        points,
    };
    let over = over.map(of).collect();
    svg(FrontierPicture::SIZE, &FrontierPicture::new(frontier, &chosen, called, all_max, over))
}

/// The steps of two plans as the texts of two SVGs on the same scales, coloured by clock.
pub(crate) fn timeline_svgs(
    profile: &Profile,
    [one, other]: [&Plan; 2],
) -> Result<[String; 2], Failure> {
    let timelines = [Timeline::new(profile, one)?, Timeline::new(profile, other)?];
    let picture = |plan: &Plan, timeline| {
        let replayed =
            plan.waiting_power().map(|power| replay(profile, plan, power)).transpose()?;
        let energy_j = replayed.map(|replayed| replayed.iteration_energy_j);
        Ok::<_, Failure>(TimelinePicture::new(plan, timeline, energy_j, Colouring::Frequency))
    };
    let first = picture(one, &timelines[0])?;
    let second = picture(other, &timelines[1])?.beside(&first);
    let first = first.beside(&second);
    Ok([svg(first.size(), &first)?, svg(second.size(), &second)?])
}

/// What GPUs did over some seconds as the text of an SVG.
pub(crate) fn course_svg(courses: &[Course]) -> Result<String, Failure> {
    svg(CoursePicture::SIZE, &CoursePicture::new(courses))
}

fn svg(size: Size, picture: &impl Picture) -> Result<String, Failure> {
    let bytes = picture::draw(Form::Svg, size, picture)?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

/// Refuses options that are given and that a picture has no use for.
fn unused(picture: &'static str, given: [(&'static str, bool); 2]) -> Result<(), Failure> {
    match given.into_iter().find(|(_, is_given)| *is_given) {
        Some((option, _)) => Err(Failure::UnusedInPicture { option, picture }),
        None => Ok(()),
    }
}

impl Plot {
    pub(crate) fn run(self, _output: &mut Output) -> Result<(), Error> {
        let form = Form::of(Path::new(&self.output))
            .ok_or_else(|| Failure::NoPictureFormat { name: self.output.clone() })?;
        let _progress = Progress::new("drawing");
        let bytes = file::read(&self.input)?;
        let picture = if Frontier::is_likely(&bytes) {
            let frontier = Frontier::from_bytes(&bytes).map_err(Failure::bad_file(&self.input))?;
            match self.kind.unwrap_or(Kind::Frontier) {
                Kind::Frontier => self.frontier(&frontier, form)?,
                Kind::Timeline => {
                    let profile = ("--profile", self.profile.is_some());
                    unused("the timeline of a frontier's plan", [profile, self.over()])?;
                    let due = Due::Waiting(frontier.seconds(self.deadline_in(&frontier)?));
                    let plan = frontier.plan_for(due)?;
                    self.timeline(frontier.pipeline().profile(), &plan, form)?
                }
            }
        } else {
            if self.kind == Some(Kind::Frontier) {
                return Err(Failure::NotAFrontier { name: self.input }.into());
            }
            let Some(name) = &self.profile else {
                return Err(Failure::NoProfile { name: self.input }.into());
            };
            let deadline = ("--deadline", self.deadline.is_some());
            unused("the timeline of a plan", [deadline, self.over()])?;
            let (measured, plan) = self.replayed.read(name, &self.input, &bytes)?;
            self.timeline(&measured.profile, &plan, form)?
        };
        Ok(file::write(&self.output, &picture)?)
    }

    /// Points over the picture, and whether they are given.
    fn over(&self) -> (&'static str, bool) {
        ("--over", !self.over.is_empty())
    }

    fn deadline_in(&self, frontier: &Frontier) -> Result<Deadline, Failure> {
        let written = self.deadline.as_ref().map(|written| frontier.deadline(written));
        Ok(written.transpose()?.unwrap_or(Deadline::MinEnergy))
    }

    fn frontier(&self, frontier: &Frontier, form: Form) -> Result<Vec<u8>, Failure> {
        let colour = ("--colour", self.colour.is_some());
        let profile = ("--profile", self.profile.is_some());
        unused("the picture of a frontier", [profile, colour])?;
        let deadline = self.deadline_in(frontier)?;
        let chosen = frontier.plan_for(Due::Waiting(frontier.seconds(deadline)))?;
        let profile = frontier.pipeline().profile();
        let all_max = Cost::at_highest_clocks(profile, &chosen, frontier.p2p_power())?;
        let over = self.over.iter().map(|name| points::read(name)).collect::<Result<_, _>>()?;
        let picture = FrontierPicture::new(frontier, &chosen, &deadline.to_string(), all_max, over);
        picture::draw(form, self.size.unwrap_or(FrontierPicture::SIZE), &picture)
    }

    fn timeline(&self, profile: &Profile, plan: &Plan, form: Form) -> Result<Vec<u8>, Failure> {
        let timeline = Timeline::new(profile, plan).map_err(Failure::bad_file(&self.input))?;
        // Without that power, the energy of waits is not known.
        let replayed = plan.waiting_power().map(|power| replay(profile, plan, power));
        let replayed = replayed.transpose().map_err(Failure::bad_file(&self.input))?;
        let energy_j = replayed.map(|replayed| replayed.iteration_energy_j);
        let picture = TimelinePicture::new(
            plan,
            &timeline,
            energy_j,
            self.colour.unwrap_or(Colouring::Power),
        );
        picture::draw(form, self.size.unwrap_or(picture.size()), &picture)
    }
}
