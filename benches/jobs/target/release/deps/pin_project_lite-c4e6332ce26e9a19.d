/work/wt-proof/benches/jobs/target/release/deps/pin_project_lite-c4e6332ce26e9a19.d: /root/.cargo/registry/src/index.crates.io-1949cf8c6b5b557f/pin-project-lite-0.2.17/src/lib.rs

/work/wt-proof/benches/jobs/target/release/deps/libpin_project_lite-c4e6332ce26e9a19.rlib: /root/.cargo/registry/src/index.crates.io-1949cf8c6b5b557f/pin-project-lite-0.2.17/src/lib.rs

/work/wt-proof/benches/jobs/target/release/deps/libpin_project_lite-c4e6332ce26e9a19.rmeta: /root/.cargo/registry/src/index.crates.io-1949cf8c6b5b557f/pin-project-lite-0.2.17/src/lib.rs

/root/.cargo/registry/src/index.crates.io-1949cf8c6b5b557f/pin-project-lite-0.2.17/src/lib.rs:
