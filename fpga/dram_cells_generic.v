// Pins of the DRAM as any simulator takes them; dram_cells_ecp5.v has the same modules for the FPGA.

// A register in front of an output.
module dram_output(input clk, input d, output reg q);
  initial q = 1;
  always @(posedge clk) q <= d;
endmodule

// A pin of both directions with registers for both and for the driver.
module dram_inout(input clk, input d, input oe, output reg q, inout pad);
  reg driven, driving = 0;
  assign pad = driving ? driven : 1'bz;
  always @(posedge clk) begin
    driven <= d;
    driving <= oe;
    q <= pad;
  end
endmodule

// A pin of both directions, of a PHY that has its own registers.
module dram_tristate(input d, input oe, output q, inout pad);
  assign pad = oe ? d : 1'bz;
  assign q = pad;
endmodule
