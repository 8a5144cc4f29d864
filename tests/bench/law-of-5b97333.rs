//! What 5b97333 took of a job without a frontier: a law, over what it draws and takes by itself.

use pfo_budget::{Curve, Point, Steering};

#[derive(Default)]
pub(crate) struct Law {
    own: Option<(f64, f64)>,
    ran: (u32, f64),
}

impl Law {
    pub(crate) fn ran(&mut self, _: Point, step_s: f64) {
        self.ran = (self.ran.0 + 1, self.ran.1 + step_s);
    }

    pub(crate) fn changed(&mut self) {
        self.ran = (0, 0.0);
    }

    pub(crate) fn know(&mut self, power_w: f64, after: u32) {
        if self.own.is_none() && self.ran.0 >= after {
            self.own = Some((power_w, self.ran.1 / f64::from(self.ran.0)));
        }
    }

    pub(crate) fn is_known(&self) -> bool {
        self.own.is_some()
    }

    pub(crate) fn curve(&self, points: &[Point]) -> Curve {
        let own = points[0];
        let (power_w, time_s) = self.own.unwrap_or((own.power_w, own.time_s));
        let lower = points[1..].iter().map(|point| {
            let share = f64::from(point.tag) / f64::from(own.tag);
            let power_w = power_w * (0.4 + 0.6 * share.powf(1.25));
            Point { time_s: time_s / share, power_w, tag: point.tag }
        });
        let own = Point { power_w, time_s, ..own };
        let points = [own].into_iter().chain(lower);
        Curve::steered(Steering::UniformClocks, points, None).unwrap()
    }
}
