// SPDX-License-Identifier: MIT OR Apache-2.0
//! Runs planning problems (CSV files) and prints a table: peak, bound, gap, time.
#![expect(clippy::print_stdout, reason = "an example that prints a table")]
use std::time::Duration;
use tonnage_plan::*;
fn cpu()->f64{let s=std::fs::read_to_string("/proc/self/stat").unwrap();let v:Vec<&str>=s.rsplit(')').next().unwrap().split_whitespace().collect();(v[11].parse::<f64>().unwrap()+v[12].parse::<f64>().unwrap())/100.0}
fn main(){
  let a:Vec<String>=std::env::args().collect();
  let cap:u64=a[1].parse().unwrap();
  let secs:f64=a[2].parse().unwrap();
  let seeds:u64=a[3].parse().unwrap();
  let (mut sum,mut worst)=(0.0,0.0f64);
  for p in &a[4..]{
    let s=std::fs::read_to_string(p).unwrap();
    let mut pr=if cap>0{Problem::with_capacity(cap)}else{Problem::new()};
    for l in s.lines().skip(1){let v:Vec<i64>=l.split(',').skip(1).take(3).map(|x|x.parse().unwrap()).collect();pr.add(Buffer::new(v[2] as u64,v[0]..v[1]));}
    let c0=cpu();
    let (mut tot,mut max)=(0.0,0.0f64); let mut gap=0.0f64; let mut st=vec![];
    for seed in 1..=seeds{
      let t0=std::time::Instant::now();
      let plan=plan(&pr,&Options{seed,threads:1,deadline:Some(Duration::from_secs_f64(secs)),attempts:u64::MAX,..Default::default()}).unwrap();
      let dt=t0.elapsed().as_secs_f64();
      tot+=dt;max=max.max(dt);
      check(&pr,&plan).unwrap();
      gap=gap.max(plan.gap()); st.push(format!("{:?}",plan.status));
    }
    st.dedup();
    println!("{:20} n={:6} gap {:.6}% mean {:.4} max {:.4} cpu {:.2} {:?}",p.rsplit('/').next().unwrap(),pr.len(),gap*100.,tot/seeds as f64,max,cpu()-c0,st);
    sum+=tot/seeds as f64;worst=worst.max(max);
  }
  println!("sum {sum:.3} worst {worst:.3}");
}
