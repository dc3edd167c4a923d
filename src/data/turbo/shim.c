/* JPEGs by libjpeg-turbo. Both functions return 0 as soon as the decoder fails or complains about anything; then another
 * decoder has the last word. */

#include <setjmp.h>
#include <stddef.h>
#include <stdio.h>

#include <jpeglib.h>

/* As many scans as the other decoder reads. One of a few bytes goes through all of an image. */
#define MOST_SCANS 100

struct handler {
  struct jpeg_error_mgr base;
  struct jpeg_progress_mgr progress;
  jmp_buf back;
};

/* Instead of ending the process. */
static void fail(j_common_ptr info) { longjmp(((struct handler *)info->err)->back, 1); }

/* Instead of printing. */
static void complain(j_common_ptr info, int level) {
  if (level < 0) fail(info);
}

static void watch(j_common_ptr info) {
  if (((j_decompress_ptr)info)->input_scan_number > MOST_SCANS) fail(info);
}

/* Before anything that may fail. */
static void prepare(struct jpeg_decompress_struct *info, struct handler *handler) {
  info->err = jpeg_std_error(&handler->base);
  handler->base.error_exit = fail;
  handler->base.emit_message = complain;
  handler->progress.progress_monitor = watch;
}

/* Reads the header. */
static int begin(struct jpeg_decompress_struct *info, const unsigned char *bytes, size_t length) {
  jpeg_create_decompress(info);
  info->progress = &((struct handler *)info->err)->progress;
  jpeg_mem_src(info, bytes, length);
  jpeg_read_header(info, TRUE);
  /* CMYK has four, which are not converted here. */
  return info->num_components == 1 || info->num_components == 3;
}

/* The width and height of a JPEG. */
int kiln_jpeg_size(const unsigned char *bytes, size_t length, unsigned size[2]) {
  struct jpeg_decompress_struct info;
  struct handler handler;
  prepare(&info, &handler);
  volatile int whole = 0;
  if (!setjmp(handler.back)) {
    whole = begin(&info, bytes, length);
    size[0] = info.image_width;
    size[1] = info.image_height;
  }
  jpeg_destroy_decompress(&info);
  return whole;
}

/* Decodes, shrunk to `eighths`, the rows from `area[1]`, `area[3]` of them, and the columns from `area[0]`, `area[2]` of
 * them, which become those of the whole blocks around. `out` has room for `room` bytes. */
int kiln_jpeg_decode(const unsigned char *bytes, size_t length, unsigned eighths, unsigned area[4], unsigned char *out,
                     size_t room) {
  struct jpeg_decompress_struct info;
  struct handler handler;
  prepare(&info, &handler);
  volatile int whole = 0;
  if (setjmp(handler.back)) {
    whole = 0;
  } else if (begin(&info, bytes, length)) {
    info.out_color_space = JCS_RGB;
    info.scale_num = eighths;
    info.scale_denom = 8;
    jpeg_start_decompress(&info);
    JDIMENSION left = area[0], width = area[2];
    jpeg_crop_scanline(&info, &left, &width);
    area[0] = left;
    area[2] = width;
    if (area[1] > 0) jpeg_skip_scanlines(&info, area[1]);
    const size_t row = (size_t)width * 3;
    whole = row * area[3] <= room && area[1] + area[3] <= info.output_height;
    for (unsigned i = 0; whole && i < area[3]; i++) {
      JSAMPROW to = out + i * row;
      whole = jpeg_read_scanlines(&info, &to, 1) == 1;
    }
  }
  jpeg_destroy_decompress(&info);
  return whole;
}
