//! Tests of the whole project: dependencies between its crates, the names of the facade, the
//! examples, and the examples of the documentation.

#[path = "../support/mod.rs"]
mod support;

mod doc_examples;
mod examples;
mod facade;
mod floors;
mod glossary;
mod packages;
