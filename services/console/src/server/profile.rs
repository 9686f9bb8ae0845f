//! The profile of a time: the steps of tasks, and samples of stacks.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::panic::Location;
use std::time::{Duration, Instant};

use pikake_kernel::inspect::{CurrentStep, KernelView, StepProfile, StepRow};
use pikake_traps::{blocking, sleep};

use super::Server;
use super::answers::{Sink, Trouble, failed};
use crate::model::{ProfileRow, Samples};
use crate::observed::{nanoseconds, shown};
use crate::protocol::Part;
use crate::stacks::Sampler;

/// The rows in a frame, which has room for more as a rule.
const IN_FRAME: usize = 500;

/// Gives the profile of the time of this length from now on.
pub(super) async fn profile(
    server: &Server,
    length: Duration,
    to: &impl Sink,
) -> Result<(), Trouble> {
    let kernels = server.kernels();
    let of_sampler = kernels.clone();
    let sampler = blocking(move || Sampler::start(of_sampler)).await.map_err(failed)?;
    let began = Instant::now();
    let profile = |kernel: KernelView| kernel.profile().map(|profile| (kernel, profile));
    let profiles: Vec<(KernelView, StepProfile)> =
        kernels.into_iter().filter_map(profile).collect();
    let timing = server.times.begin(profiles.iter().map(|(kernel, _)| kernel.clone()));
    sleep(length).await.map_err(failed)?;
    let mut rows = Rows::default();
    for (kernel, profile) in profiles {
        let stuck = kernel.current_step();
        profile.finish().into_iter().for_each(|row| rows.add(row));
        if let Some(step) = stuck {
            rows.add_unfinished(&step, began.elapsed());
        }
    }
    drop(timing);
    for rows in rows.finish().chunks(IN_FRAME) {
        to.part(Part::Profile(rows.to_vec())).await?;
    }
    let finish = move || sampler.and_then(Sampler::finish);
    match blocking(finish).await.map_err(failed)? {
        Ok(parts) => {
            for samples in parts {
                to.part(Part::Samples(samples)).await?;
            }
        }
        Err(why) => {
            let none = Samples { none: Some(why), ..Samples::default() };
            to.part(Part::Samples(none)).await?;
        }
    }
    Ok(())
}

/// The rows of all kernels.
#[derive(Default)]
struct Rows(BTreeMap<(Box<str>, &'static Location<'static>), ProfileRow>);

impl Rows {
    fn row(&mut self, name: Box<str>, spawned_at: &'static Location<'static>) -> &mut ProfileRow {
        let shown = ProfileRow {
            name: shown(&name),
            spawned_at: spawned_at.to_string(),
            ..ProfileRow::default()
        };
        self.0.entry((name, spawned_at)).or_insert(shown)
    }

    fn add(&mut self, of_kernel: StepRow) {
        let row = self.row(of_kernel.name, of_kernel.spawned_at);
        row.spawned += of_kernel.spawned;
        row.steps += of_kernel.steps;
        row.busy += nanoseconds(of_kernel.busy);
        row.longest = row.longest.max(nanoseconds(of_kernel.longest));
        for (trap, count) in of_kernel.waits {
            match row.waits.iter_mut().find(|(known, _)| known == trap.name()) {
                Some((_, all)) => *all += count,
                None => row.waits.push((trap.name().to_owned(), count)),
            }
        }
    }

    /// Adds the step that a kernel is in, which the kernel has not added: it may last for the whole
    /// profile.
    fn add_unfinished(&mut self, step: &CurrentStep, length: Duration) {
        let lasts = nanoseconds(step.lasts.min(length));
        if lasts > 0 {
            let row = self.row(step.name.clone(), step.spawned_at);
            row.steps += 1;
            row.busy += lasts;
            row.longest = row.longest.max(lasts);
        }
    }

    /// The rows, that with the most time first.
    fn finish(self) -> Vec<ProfileRow> {
        let mut rows: Vec<ProfileRow> = self.0.into_values().collect();
        for row in &mut rows {
            row.waits.sort_by(|(a, x), (b, y)| y.cmp(x).then_with(|| a.cmp(b)));
        }
        rows.sort_by_key(|row| Reverse(row.busy));
        rows
    }
}
