//! What is known of a job without a frontier.

use pfo_budget::{Clock, Curve, Paces, Point, Prior};

/// The law, and what was measured of the job.
#[derive(Default)]
pub(crate) struct Law {
    /// Watts and seconds of a step at its own clocks, once they are known.
    own: Option<(f64, f64)>,
    paces: Paces,
    /// Steps since its last change, and their time.
    ran: (u32, f64),
}

impl Law {
    /// A step has ended at this point.
    pub(crate) fn ran(&mut self, at: Point, step_s: f64) {
        self.ran = (self.ran.0 + 1, self.ran.1 + step_s);
        if self.ran.0 > 1 {
            self.paces.take(at.tag, self.ran.0.into(), self.ran.1 / f64::from(self.ran.0));
        }
    }

    pub(crate) fn changed(&mut self) {
        self.ran = (0, 0.0);
    }

    /// What it draws by itself, after these many steps.
    pub(crate) fn know(&mut self, power_w: f64, after: u32) {
        if self.own.is_none() && self.ran.0 >= after {
            self.own = Some((power_w, self.ran.1 / f64::from(self.ran.0)));
            self.paces = Paces::default();
        }
    }

    pub(crate) fn is_known(&self) -> bool {
        self.own.is_some()
    }

    /// The curve of these points, of which the tag is the clock.
    pub(crate) fn curve(&self, points: &[Point]) -> Curve {
        let own = points[0];
        let (power_w, time_s) = self.own.unwrap_or((own.power_w, own.time_s));
        let (tag, known) = (own.tag, Point { power_w, time_s, ..own });
        let mut lower: Vec<Clock> =
            points[1..].iter().map(|point| Clock { mhz: point.tag, tag: point.tag }).collect();
        lower.sort_unstable_by_key(|clock| clock.mhz);
        Curve::of_uniform_clocks(known, tag, lower, (&self.paces, Prior::Usual), None).unwrap()
    }
}
