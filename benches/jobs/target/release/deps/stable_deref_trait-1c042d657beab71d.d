/work/wt-proof/benches/jobs/target/release/deps/stable_deref_trait-1c042d657beab71d.d: /root/.cargo/registry/src/index.crates.io-1949cf8c6b5b557f/stable_deref_trait-1.2.1/src/lib.rs

/work/wt-proof/benches/jobs/target/release/deps/libstable_deref_trait-1c042d657beab71d.rlib: /root/.cargo/registry/src/index.crates.io-1949cf8c6b5b557f/stable_deref_trait-1.2.1/src/lib.rs

/work/wt-proof/benches/jobs/target/release/deps/libstable_deref_trait-1c042d657beab71d.rmeta: /root/.cargo/registry/src/index.crates.io-1949cf8c6b5b557f/stable_deref_trait-1.2.1/src/lib.rs

/root/.cargo/registry/src/index.crates.io-1949cf8c6b5b557f/stable_deref_trait-1.2.1/src/lib.rs:
