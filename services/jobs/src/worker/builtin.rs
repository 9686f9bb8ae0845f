//! The jobs that Celery's workers run without being told of them, as far as these workers run them:
//! they are parts of workflows. An application gets one with its first message.

use serde_json::{Value, json};

use crate::client::group::COLLECT;
use crate::job::{Completion, Definition, Kind, Returned, RunTask, Runner};
use crate::options::JobOptions;
use crate::wire::arguments::{WrongArguments, read_arguments};
use crate::wire::failure::Failure;
use crate::wire::signature::{self, CanvasSignature, Raw, raw};

const MAP: &str = "celery.map";
const STARMAP: &str = "celery.starmap";

/// The built-in job of this name.
pub(crate) fn builtin(name: &str) -> Option<Definition> {
    let job =
        |name, run: RunTask| Some(Definition::new(name, JobOptions::DEFAULT, Runner::Task(run)));
    match name {
        COLLECT => job(COLLECT, |args, kwargs| at_once(collect(args, kwargs)?)),
        MAP => job(MAP, |args, kwargs| at_once(map(MAP, args, kwargs, |item| Ok(vec![item]))?)),
        STARMAP => job(STARMAP, |args, kwargs| {
            let arguments = |item: Raw| serde_json::from_str(item.get());
            at_once(map(STARMAP, args, kwargs, arguments)?)
        }),
        _ => None,
    }
}

type Run = crate::broker::LocalFuture<'static, Returned>;

#[expect(clippy::unnecessary_wraps, reason = "the result of a job's function")]
fn at_once(returned: Returned) -> Result<Run, WrongArguments> {
    Ok(Box::pin(async { returned }))
}

/// The value of the group before it, at index 0 of the arguments.
fn collect(args: &str, kwargs: &str) -> Result<Returned, WrongArguments> {
    let parameters = ["values", "index"];
    let (values, index): (Value, Option<usize>) =
        read_arguments(COLLECT, &parameters, args, kwargs)?;
    Ok(match index {
        Some(0) => Ok(values.into()),
        None => Ok(json!([values]).into()),
        Some(_) => Err(Failure::new("IndexError", "builtins", "tuple index out of range")),
    })
}

/// A group of one job for each item, in place of Celery's loop over them.
fn map(
    name: &str,
    args: &str,
    kwargs: &str,
    arguments: impl Fn(Raw) -> serde_json::Result<Vec<Raw>>,
) -> Result<Returned, WrongArguments> {
    let (task, items): (CanvasSignature, Vec<Raw>) =
        read_arguments(name, &["task", "it"], args, kwargs)?;
    if items.is_empty() {
        return Ok(Ok(json!([]).into()));
    }
    let mut calls = Vec::new();
    for item in items {
        let mut call = CanvasSignature::new(&*task.task);
        call.args = match arguments(item) {
            Ok(arguments) => arguments,
            Err(_) => {
                let why = format!("{name}: the arguments of `{}` are no list", task.task);
                return Ok(Err(Failure::new("TypeError", "builtins", why)));
            }
        };
        calls.push(call);
    }
    let mut all = CanvasSignature::new(COLLECT);
    all.kwargs.insert("index".to_owned(), raw(&0));
    let group = CanvasSignature::of_kind(signature::Kind::Group, [("tasks", raw(&calls))]);
    let parts = [("header", raw(&group)), ("body", raw(&all))];
    let chord = CanvasSignature::of_kind(signature::Kind::Chord, parts);
    Ok(Ok(Completion(Kind::Workflow(Box::new(chord)))))
}
