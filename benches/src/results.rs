//! Results: collected, written as TSV, read again, printed as tables.

use std::collections::BTreeMap;
use std::fs;
use std::io;

use crate::workloads::columns;

const HEADER: &str = "workload\tsize\tmetric\truntime\tmedian\tmin\tmax\truns";

/// What is measured how often, in the order in which it first came.
#[derive(Default)]
pub struct Results {
    order: Vec<Key>,
    values: BTreeMap<Key, Vec<f64>>,
}

#[derive(Clone, PartialEq, Eq, PartialOrd, Ord)]
struct Key {
    workload: String,
    size: usize,
    metric: String,
    runtime: String,
}

impl Results {
    pub fn add(&mut self, workload: &str, size: usize, metric: &str, runtime: &str, value: f64) {
        let [workload, metric, runtime] = [workload, metric, runtime].map(String::from);
        let key = Key { workload, size, metric, runtime };
        if !self.values.contains_key(&key) {
            self.order.push(key.clone());
        }
        self.values.entry(key).or_default().push(value);
    }

    pub fn tsv(&self) -> String {
        let mut text = format!("{HEADER}\n");
        for key in &self.order {
            let Key { workload, size, metric, runtime } = key;
            let mut values = self.values[key].clone();
            let median = median(&mut values);
            let (min, max, runs) = (values[0], values[values.len() - 1], values.len());
            let line = format!(
                "{workload}\t{size}\t{metric}\t{runtime}\t{median:.1}\t{min:.1}\t{max:.1}\t{runs}\n"
            );
            text.push_str(&line);
        }
        text
    }

    /// Reads what [`tsv`](Self::tsv) wrote, with medians in the place of the values.
    pub fn read(path: &str) -> io::Result<Self> {
        let mut results = Self::default();
        for line in fs::read_to_string(path)?.lines().skip(1) {
            let fields: Vec<&str> = line.split('\t').collect();
            let [workload, size, metric, runtime, value, ..] = fields[..] else {
                return Err(io::Error::other(format!("{path} has a line of another form: {line}")));
            };
            let size = size.parse().map_err(io::Error::other)?;
            let value = value.parse().map_err(io::Error::other)?;
            results.add(workload, size, metric, runtime, value);
        }
        Ok(results)
    }

    /// Tables in Markdown, one for each metric: a row for each workload, pikake's figure, and the
    /// others' as multiples of it.
    pub fn tables(&self) -> String {
        let mut metrics: Vec<&str> = Vec::new();
        for key in &self.order {
            if !metrics.contains(&key.metric.as_str()) {
                metrics.push(&key.metric);
            }
        }
        metrics.iter().map(|metric| self.table(metric)).collect()
    }

    fn table(&self, metric: &str) -> String {
        let keys = || self.order.iter().filter(|key| key.metric == metric);
        let runtimes: Vec<&str> =
            columns().filter(|runtime| keys().any(|key| key.runtime == *runtime)).collect();
        let mut rows: Vec<(&str, usize)> = Vec::new();
        for key in keys() {
            if !rows.contains(&(&key.workload, key.size)) {
                rows.push((&key.workload, key.size));
            }
        }
        let mut text = format!("\n**{metric}**\n\n| workload | {} |\n", runtimes.join(" | "));
        text.push_str(&format!("| --- |{}\n", " ---: |".repeat(runtimes.len())));
        for (workload, size) in rows {
            let value = |runtime: &str| {
                let mut cells = keys().filter(|key| {
                    key.workload == workload && key.size == size && key.runtime == runtime
                });
                cells.next().map(|key| median(&mut self.values[key].clone()))
            };
            let size = match metric.ends_with("_by_size") {
                true => format!(", {size}"),
                false => String::new(),
            };
            text.push_str(&format!("| {workload}{size} |"));
            let ours = value(runtimes[0]);
            for (column, runtime) in runtimes.iter().enumerate() {
                let cell = match (value(runtime), ours) {
                    (None, _) => String::from(" - |"),
                    (Some(theirs), Some(ours)) if column > 0 && ours > 0.0 => {
                        format!(" ×{:.2} |", theirs / ours)
                    }
                    (Some(value), _) => format!(" {} |", short(value)),
                };
                text.push_str(&cell);
            }
            text.push('\n');
        }
        text
    }
}

/// Sorts the values.
fn median(values: &mut [f64]) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

/// Three digits or more.
fn short(value: f64) -> String {
    if value < 100.0 { format!("{value:.1}") } else { format!("{value:.0}") }
}
