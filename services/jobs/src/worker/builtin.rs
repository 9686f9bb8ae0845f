//! The jobs that Celery's workers run without being told of them, as far as these workers run them:
//! they are parts of workflows. An application gets one with its first message.

use serde_json::{Value, json};

use crate::broker::LocalFuture;
use crate::canvas::COLLECT;
use crate::completion::{Completion, Kind, Returned};
use crate::current::try_current_job;
use crate::wire::arguments::{WrongArguments, read_arguments};
use crate::wire::failure::Failure;
use crate::wire::signature::{self, CanvasSignature, Raw, raw};

const MAP: &str = "celery.map";
const STARMAP: &str = "celery.starmap";

type Run = Result<LocalFuture<'static, Returned>, WrongArguments>;

/// A name, and the function of a job: see [`RunTask`](crate::RunTask).
type BuiltIn = (&'static str, fn(&str, &str) -> Run);

/// The built-in job of this name.
pub(crate) fn builtin(name: &str) -> Option<BuiltIn> {
    match name {
        COLLECT => Some((COLLECT, |args, kwargs| at_once(collect(args, kwargs)))),
        MAP => Some((MAP, |args, kwargs| at_once(map(MAP, args, kwargs, |item| Ok(vec![item]))))),
        STARMAP => Some((STARMAP, |args, kwargs| {
            at_once(map(STARMAP, args, kwargs, |item| serde_json::from_str(item.get())))
        })),
        _ => None,
    }
}

fn at_once(returned: Result<Returned, WrongArguments>) -> Run {
    let returned = returned?;
    Ok(Box::pin(async { returned }))
}

/// Its arguments by position, or the one at an index.
fn collect(args: &str, kwargs: &str) -> Result<Returned, WrongArguments> {
    let (index,): (Option<usize>,) = read_arguments(COLLECT, &["index"], "[]", kwargs)?;
    let (mut all,): (Vec<Value>,) = read_arguments(COLLECT, &["args"], &format!("[{args}]"), "{}")?;
    Ok(match index {
        None => Ok(Value::from(all).into()),
        Some(index) if index < all.len() => Ok(all.swap_remove(index).into()),
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
    // Celery runs them where the message is, and another queue may have no worker.
    let queue = try_current_job().map(|job| raw(&job.queue()));
    let queue = queue.map(|queue| ("queue".to_owned(), queue));
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
        call.options.extend(queue.clone());
        calls.push(call);
    }
    let mut all = CanvasSignature::new(COLLECT);
    all.kwargs.insert("index".to_owned(), raw(&0));
    all.options.extend(queue);
    let group = CanvasSignature::of_kind(signature::Kind::Group, [("tasks", raw(&calls))]);
    let parts = [("header", raw(&group)), ("body", raw(&all))];
    let chord = CanvasSignature::of_kind(signature::Kind::Chord, parts);
    Ok(Ok(Completion(Kind::Workflow(Box::new(chord)))))
}
