//! The items worth keeping among many that cost time and energy.

/// Seconds and effective joules.
pub(crate) type Cost = (f64, f64);

/// The items, fastest first, that take less energy than every faster one.
pub(crate) fn falling<T>(items: impl IntoIterator<Item = T>, cost: impl Fn(&T) -> Cost) -> Vec<T> {
    let mut items: Vec<T> = items.into_iter().collect();
    items.sort_by(|a, b| {
        let ((a_s, a_j), (b_s, b_j)) = (cost(a), cost(b));
        a_s.total_cmp(&b_s).then(a_j.total_cmp(&b_j))
    });
    let mut least_j = f64::INFINITY;
    items.retain(|item| {
        let (_, item_j) = cost(item);
        let is_cheaper = item_j < least_j;
        least_j = least_j.min(item_j);
        is_cheaper
    });
    items
}

/// Of items by rising time, those that no mixture of two others beats.
pub(crate) fn lower_hull<T>(
    items: impl IntoIterator<Item = T>,
    cost: impl Fn(&T) -> Cost,
) -> Vec<T> {
    let mut hull: Vec<T> = Vec::new();
    for item in items {
        let (c_s, c_j) = cost(&item);
        while let [.., a, b] = &hull[..] {
            let ((a_s, a_j), (b_s, b_j)) = (cost(a), cost(b));
            if (b_j - a_j) * (c_s - a_s) < (c_j - a_j) * (b_s - a_s) {
                break;
            }
            hull.pop();
        }
        hull.push(item);
    }
    hull
}

#[cfg(test)]
mod tests {
    use super::*;

    const COSTS: [Cost; 6] =
        [(4.0, 3.0), (1.0, 10.0), (2.0, 9.0), (3.0, 4.0), (2.0, 9.5), (2.5, 9.0)];

    #[test]
    fn what_takes_no_less_energy_than_something_faster_is_not_worth_having() {
        let falling = falling(COSTS, |&cost| cost);
        assert_eq!(falling, [(1.0, 10.0), (2.0, 9.0), (3.0, 4.0), (4.0, 3.0)]);
    }

    #[test]
    fn what_lies_above_the_line_between_two_others_is_not_on_the_hull() {
        let hull = lower_hull(falling(COSTS, |&cost| cost), |&cost| cost);
        assert_eq!(hull, [(1.0, 10.0), (3.0, 4.0), (4.0, 3.0)]);
    }
}
