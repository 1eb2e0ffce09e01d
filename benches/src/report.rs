use anyhow::Result;
use serde_json::json;

use crate::cli::Args;
use crate::results::{self, Line, Named, Ratio};
use crate::rounds::Measurement;

pub(crate) fn print(args: &Args, measurements: &[Measurement]) -> Result<()> {
    let lines = results::lines(measurements);
    if args.json { print_json(args, &lines) } else { print_table(args, &lines) }
}

fn print_json(args: &Args, lines: &[Line]) -> Result<()> {
    let report = json!({
        "messages": args.messages,
        "bytes": args.bytes,
        "rounds": args.rounds,
        "hand_batch": args.hand_batch,
        "connections": args.connections,
        "threads": args.threads,
        "results": lines,
    });
    println!("{}", serde_json::to_string_pretty(&report)?);
    Ok(())
}

fn print_table(args: &Args, lines: &[Line]) -> Result<()> {
    println!(
        "{} messages of {} bytes, {} rounds, {} connections, {} threads; the relay's settings are batch×window\n",
        args.messages, args.bytes, args.rounds, args.connections, args.threads
    );
    println!("| queue    | variant        |  msgs/s | min – max       | CPU µs | times as fast as |");
    println!("|----------|----------------|--------:|-----------------|-------:|------------------|");
    lines.iter().for_each(print_line);
    lines.iter().filter(|line| !line.figures.is_empty()).for_each(print_figures);
    Ok(())
}

fn print_line(line: &Line) {
    println!(
        "| {:<8} | {:<14} | {:>7.0} | {:<15} | {:>6} | {} |",
        line.queue.map_or("–", |queue| queue.name()),
        line.variant,
        line.rate.median,
        format!("{:.0} – {:.0}", line.rate.min, line.rate.max),
        line.cpu_micros.map_or(String::from("–"), |cpu| format!("{:.1}", cpu.median)),
        line.ratios.iter().map(ratio).collect::<Vec<_>>().join(", ")
    );
}

fn print_figures(line: &Line) {
    println!("\n{} ({})", line.variant, line.queue.map_or("–", |queue| queue.name()));
    for Named { name, value } in &line.figures {
        println!("  {name:<28} {:>8.1}  ({:.1} – {:.1})", value.median, value.min, value.max);
    }
}

fn ratio(ratio: &Ratio) -> String {
    let times = &ratio.times;
    format!("{} {:.2} ({:.2} – {:.2})", ratio.to, times.median, times.min, times.max)
}
